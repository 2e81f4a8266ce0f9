"""A trained model behind HTTP: `POST /predict`, and a page to drop images on.

The server has no password, encryption or rate limit; a reverse proxy can add them.
"""
