"""Report of a run: one HTML file without external assets, from the steps' output directories."""

from qatline.components.report.page import render_report
from qatline.components.report.sources import ReportFolders

__all__ = ["ReportFolders", "render_report"]
