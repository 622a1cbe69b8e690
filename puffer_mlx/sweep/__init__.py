"""Many runs for one good configuration: what is searched, what is tried next, what is ended early.

`reading.read_sweep` makes settings and a space of parameters out of a configuration's ``[sweep]``
sections; `methods.make_method` what suggests vectors of that space and is told what came of them.
Vectors are (d,) float64, a coordinate for each parameter, -1 to 1 over its range.
"""
