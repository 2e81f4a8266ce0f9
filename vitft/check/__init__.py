"""Check of a labelled image folder (`vitft check`): findings and proposed fixes.

folder  the complete check of a folder
audit   findings, as written to audit.json, and the table of proposed fixes
"""
