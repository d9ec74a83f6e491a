"""Modules of `fastdata.DataLoader`.

A batch on the native path passes these in order: `fastdata.plan.schedule` (which samples),
`fastdata.loading.fields` (where they lie, which crops, decoding ahead of the consumer, one class
for each kind of field), ``iterator`` (what the consumer sees).
"""
