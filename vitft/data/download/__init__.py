"""Downloading: archives, known data sets, single images."""
