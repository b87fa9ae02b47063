"""The atlas: one interactive page per model, and one that compares the models.

`packing` turns arrays into text blocks of a page, `data` gathers what the page shows from the results,
`page` puts both and the assets (HTML, CSS and JavaScript files) together.
"""
