"""The script that a browser session runs."""

from dashboard.app import main

main()
