"""Running Python that nobody has read: confined processes (confine, submission) and the tests of them (examiner).

What a confined process imports (confine, syscalls, submission, values) is this and the standard library.
"""
