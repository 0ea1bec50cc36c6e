"""The embedded target: a small paged-KV inference engine with an OpenAI-compatible server.

Started as a process of its own, `python -m leakcheck.engine`; nothing here imports the harness and
the harness imports nothing here. Read in this order: `values` (what goes in and out), `pool` and
`prefix` (who owns which block), `cache` and `rows` (how any unmodified transformers model runs on
blocks), `sequence`, `scheduler`, `sampling`, `text`, `engine` (one step), then `loop`, `protocol`,
`server`. `faults` patches named methods of a built engine; the engine itself knows of no fault.
"""
