"""A trained model behind HTTP: `POST /predict`, and a page to drop images on.

    limits       limits of size, number and time                     (no torch, no FastAPI)
    access       allowed Host and Origin headers                     (no torch, no FastAPI)
    page/        the page: HTML, style, script, security policy      (no torch, no FastAPI)
    uploads      request bodies and forms within limits
    batching     queue of images that are predicted in batches
    schemas      JSON responses and their schemas
    app          routes, error responses, security headers
    server       socket, connection timeouts and uvicorn settings

The server has no password, encryption or rate limit; a reverse proxy can add them.
"""
