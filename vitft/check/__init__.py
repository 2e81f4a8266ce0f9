"""Checks of a labelled image folder (`vitft check`): findings and a proposed fix for each.

folder  the complete check of a folder
audit   findings, as written to audit.json, and the table of proposed fixes
"""
