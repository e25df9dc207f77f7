"""``python -m population`` is the ``graft`` command."""

from population.cli import app

app()
