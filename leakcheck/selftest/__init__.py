"""Prove that leakcheck can say `leak`, and does not say it of what is none.

`schedule` says what to play, `bench` plays it against the embedded engine, `outcome` and
`aggregate` turn verdicts into figures, `table` shows them; `campaign.run` is the whole.
"""
