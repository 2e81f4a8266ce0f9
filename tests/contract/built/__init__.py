"""Files of contract rows that are neither drawn images nor text, by theme.

Each function writes below the folder that it gets.
"""
