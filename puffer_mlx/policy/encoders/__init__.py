"""Encoders: observations to features. A folder each, with all its forms.

| file | what |
| --- | --- |
| ``__init__.py`` | ``NAME``, as ``torch.encoder`` says it |
| ``encoder.py`` | the classes: equations in MLX; ``make`` chooses one for an environment |
| ``forms.py`` | ``FORMS`` by class: what the rest asks it for (see ``encoders/forms.py``) |
| ``torch_module.py`` | upstream's torch class, written anew; ``make`` is one for an encoder |
"""
