"""The page about a run: one self-contained HTML file, no script, no network."""

from gymfleet_cli.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
