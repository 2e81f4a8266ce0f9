"""A trained model behind HTTP: `POST /predict`, and a page to drop images on.

    limits       limits of size, number and time                     (no torch, no FastAPI)
    access       allowed Host and Origin headers                     (no torch, no FastAPI)
    page/        the page: HTML, style, script, security policy      (no torch, no FastAPI)
    multipart    parser of multipart/form-data                       (no torch, no FastAPI)
    body         reading a request body within limits
    thread_pool  bounded thread pool for blocking work
    batching     queue of images that are predicted in batches
    schemas      JSON responses and their schemas
    app          routes and error responses
    middleware   host and origin checks, security headers
    protocol     connection timeouts and the limit of connections
    server       socket and uvicorn settings

The server has no password, encryption or rate limit; a reverse proxy can add them.
"""
