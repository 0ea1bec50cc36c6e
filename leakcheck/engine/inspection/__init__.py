"""White-box instruments for a local model: where in it a contamination starts.

Started as a process of its own, `python -m leakcheck.engine.inspection`. One module a command,
each with `add_flags(parser)` and `main(arguments) -> int`: `cache` (does generation with a cache
compute what it computes without), `quant` (what a rounded cache costs), `size` (bytes of a cache),
`leak` (the first contaminated layer under a fault), `pool` (the blocks of a running engine).
"""
