"""Checks of a labelled image folder (`vitft check`): findings, and a proposed fix for each.

folder  the whole check of a folder
audit   the findings, as in audit.json, and the table of proposed fixes
"""
