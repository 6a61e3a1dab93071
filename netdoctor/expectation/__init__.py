"""What a node ought to have, from several sources, and what it lacks of that.

`parts` says what is there, in small values by `Quantity`; each source is a module with pure functions from parts (and facts) to
`Expectation`s (`device`, `siblings`, `platform`); `judged` weighs all of them in the same way, whatever their source.
"""
