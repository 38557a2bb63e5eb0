"""The report of a run.

One HTML file without outside assets, from the directories that the steps wrote.
"""

from qatline.components.report.page import render_report
from qatline.components.report.sources import ReportFolders

__all__ = ["ReportFolders", "render_report"]
