"""Hyperparameter search: the settings, the space of parameters, the methods and early stopping.

`reading.read_sweep` reads settings and the space from a configuration's ``[sweep]`` sections.
`methods.make_method` creates the method that suggests vectors and learns from their results. A
vector has one coordinate per parameter, -1 to 1 over the parameter's range, (d,) float64.
"""
