"""The report of a run.

One HTML file without outside assets, from the directories that the steps wrote.
"""

from components.report.page import render_report
from components.report.sources import ReportFolders

__all__ = ["ReportFolders", "render_report"]
