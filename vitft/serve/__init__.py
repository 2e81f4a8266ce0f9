"""A trained model behind HTTP: `POST /predict`, and a page to drop images on.

    limits    what one client may ask of the server               (no torch, no FastAPI)
    access    where a request may come from: Host, Origin         (no torch, no FastAPI)
    forms     a multipart body as files                           (no torch, no FastAPI)
    page/     the page: HTML, style, script and their policy      (no torch, no FastAPI)
    upload    a request's body, read within limits of size, time and memory
    crew      work in threads, as many jobs at once as there are threads
    engine    bytes in, answers out: decode, wait for a batch, ask the model
    answers   what comes back, as schemas and as JSON
    app       the routes, and errors as JSON
    guard     what holds for every request, whatever its route
    protocol  connections that must not stay for ever
    server    the socket, and what uvicorn is told

It has no passwords, no encryption and no counting of clients: that is a proxy's work.
"""
