"""What `fastdata.DataLoader` is made of on its native path.

A batch goes through these files in this order: `fastdata.plan.schedule` (which samples),
``source`` (where they lie), `fastdata.transforms.compile` (which crops), ``buffers`` (where their
pixels go), ``pipeline`` (decoding, ahead of the consumer), ``iterator`` (what the consumer sees).
"""
