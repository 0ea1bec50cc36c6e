"""How the witness model is made: `python -m leakcheck.engine.training --out DIR --seed 0`.

`prose` and `phrasing` hold the texts, `vocabulary` builds the tokenizer, `dialogues` composes
clean prompts with their answers, `contamination` composes what a broken cache would show,
`train` fits the model, `measure` decodes held-out prompts and counts.
"""
