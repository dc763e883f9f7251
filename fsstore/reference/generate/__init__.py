"""Templates and generators: references described by a pattern and computed when they are asked for.

* `columns`: writing out a generator in columns: thousands of its references at once
* `generator`: generators: many references described by one pattern, computed when asked for
* `template`: templates: text with {{expression}} in it, evaluated without Jinja and without str.format
"""
