"""Modules of `fastdata.DataLoader`.

``loader`` resolves its arguments and dataset once (``resolved``), and begins passes (``passes``,
``native``). A batch on the native path goes through `fastdata.plan.schedule` (which samples),
`fastdata.loading.fields` (rows, crops, pixels: a class for each kind of field) and ``iterator``
(order, bad samples, delivery). ``docs/design/0026-one-loader.md`` names each function on the way.
"""
