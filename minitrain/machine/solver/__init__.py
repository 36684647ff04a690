"""Models x systems with units: how long an inference takes, what limits it, what it costs, and whether it fits.

Nothing here knows ranks or events. All of it needs pint (the extra
`hw`), which is imported when one of these modules is; `import minitrain` does not.

Open `engine` first: `Engine.solve` is the specification's formula, and `solve` takes names and lists. Results are said
in words (`PerformanceProfile.explain`), tabled and drawn there too. `models` and `systems` are what it takes, with the
named presets of the specification and views on our own models and configs. `formulas` holds the bottleneck, `constants`
the units.

What is modelled: one inference (for a language model: one token) is a number of FLOPs and one pass over the weights;
both overlap, and a device adds a dispatch tax. Left out: activations, caches of keys and values, and communication;
`minitrain.simulate` has these.
"""
