"""What `streamlit run` is given.

It lies apart from `dashboard/pages`: Streamlit takes any folder of that name beside its script for pages of its own,
and would run them bare when a link leads there first.
"""

from dashboard.app import main

main()
