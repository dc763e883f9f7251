"""Random chains of indexing operations, run through fsstore and TensorStore side by side.

Run as a program, `index_chains.py FIRST COUNT` works through seeds and prints one JSON line for each disagreement and
a summary at the end; before each seed it prints the seed, so that the caller can go on after a crash of TensorStore.
Operations are Python expressions over `t`, `ts`, `np` and `d`, evaluated once with each library.
"""

import json
import random
import re
import sys

import numpy as np


def box(rng, rank, wild):
    lo, hi, il, iu = [], [], [], []
    for _ in range(rank):
        a = rng.randint(-6, 6)
        n = rng.choice([0, 1, 1, 2, 3, 4, 5, 7, 10]) if rng.random() < 0.9 else 20
        b = a + n
        fl, fu = rng.random() < 0.25, rng.random() < 0.35
        if wild and rng.random() < 0.12:
            a, fl = "-ts.inf", rng.random() < 0.7
        if wild and rng.random() < 0.12:
            b, fu = "ts.inf+1", rng.random() < 0.7
        lo.append(a), hi.append(b), il.append(fl), iu.append(fu)
    return lo, hi, il, iu


def vec(v):
    return "[" + ",".join(map(str, v)) + "]"


def labels(rng, rank):
    if rng.random() < 0.4:
        return None
    names = rng.sample(["x", "y", "z", "w", "v", "u"], min(rank, 6))
    return [n if rng.random() < 0.7 else "" for n in names] + [""] * (rank - 6)


def domain(rng, rank, wild=True):
    lo, hi, il, iu = box(rng, rank, wild)
    lab = labels(rng, rank)
    extra = f",labels={lab!r}" if lab is not None else ""
    return (
        f"ts.IndexDomain(inclusive_min={vec(lo)},exclusive_max={vec(hi)},implicit_lower_bounds={vec(il)},implicit_upper_bounds={vec(iu)}{extra})",
        (lo, hi, il, iu),
    )


def output(rng, rank, shape, il, iu):
    kind = rng.random()
    off = rng.choice([0, 0, 1, -3, 5])
    if kind < 0.15 or rank == 0 and kind < 0.8:
        return f"ts.OutputIndexMap({off})"
    if kind < 0.75 and rank:
        st = rng.choice([1, 1, 1, -1, 2, -2, 3, 0])
        return f"ts.OutputIndexMap(input_dimension={rng.randrange(rank)},offset={off},stride={st})"
    sizes = []
    for n, a, b in zip(shape, il, iu):
        sizes.append(n if (isinstance(n, int) and not a and not b and rng.random() < 0.6 and n < 8) else 1)
    total = 1
    for n in sizes:
        total *= n
    vals = [rng.randint(-2, 12) for _ in range(total)]
    rg = rng.choice(["", "", ",index_range=ts.Dim(10)", ",index_range=ts.Dim(inclusive_min=-1)"])
    st = rng.choice([1, 1, -1, 2, 0])
    return f"ts.OutputIndexMap(np.array({vals},dtype=np.int64).reshape({tuple(sizes)}),offset={off},stride={st}{rg})"


def start(rng, rank=None):
    rank = rng.choice([0, 1, 1, 2, 2, 3, 3, 4]) if rank is None else rank
    text, (lo, hi, il, iu) = domain(rng, rank)
    if rng.random() < 0.6:
        return f"ts.IndexTransform({text})"
    shape = [b - a if isinstance(a, int) and isinstance(b, int) else None for a, b in zip(lo, hi)]
    if any(n == 0 and (a or b) for n, a, b in zip(shape, il, iu)):
        return f"ts.IndexTransform({text})"
    n = rng.choice([0, 1, 2, 3])
    outs = ",".join(output(rng, rank, shape, il, iu) for _ in range(n))
    return f"ts.IndexTransform({text},[{outs}])"


def index_near(rng, dim):
    lo, hi = dim.inclusive_min, dim.exclusive_max
    lo = lo if abs(lo) < 1000 else -8
    hi = hi if abs(hi) < 1000 else max(8, lo + 3)
    lo = min(lo, hi)
    if rng.random() < 0.08:
        return rng.randint(lo - 3, hi + 3)
    return rng.randint(lo, max(lo, hi - 1))


def slice_near(rng, dim):
    def end():
        lo, hi = dim.inclusive_min, dim.exclusive_max
        lo = lo if abs(lo) < 1000 else -8
        hi = hi if abs(hi) < 1000 else max(8, lo + 3)
        if rng.random() < 0.06:
            return rng.randint(lo - 3, hi + 3)
        return rng.randint(lo, max(lo, hi))

    r = rng.random()
    if r < 0.25:
        return ":"
    step = (
        rng.choice([None, None, None, 1, 2, 3, -1, -2, -3]) if rng.random() < 0.97 else rng.choice([0, 2**62, -(2**40)])
    )
    if (
        dim.size == 0
        and step is not None
        and step < 0
        or dim.size == 0
        and (dim.implicit_lower or dim.implicit_upper)
        and step is not None
        and step < 0
    ):
        step = None  # see DELIBERATE
    a = end() if rng.random() < 0.6 else None
    b = end() if rng.random() < 0.6 else None
    if step is not None and step < 0 and (a is None) != (b is None):
        # TensorStore marks the wrong side as implicit (see DELIBERATE)
        a = b = None
    if a is not None and b is not None:
        a, b = min(a, b), max(a, b)
        if step is not None and step < 0:
            a, b = b, a
        if rng.random() < 0.03:
            a, b = b, a
    if rng.random() < 0.01:
        a = rng.choice(["-ts.inf", "ts.inf", "2**62", "-2**62", "2**63-1"])
    s = f"{'' if a is None else a}:{'' if b is None else b}"
    return s if step is None else f"{s}:{step}"


def array_near(rng, dim, shape):
    total = 1
    for n in shape:
        total *= n
    vals = [index_near(rng, dim) for _ in range(total)]
    dt = rng.choice(["int64", "int64", "int32", "uint8"])
    if dt == "uint8" and any(not 0 <= v < 256 for v in vals):
        dt = "int16"
    return f"np.array({vals},dtype=np.{dt}).reshape({shape})"


def bool_near(rng, n, rank):
    shape = tuple(rng.randint(0, 4) for _ in range(rank))
    total = 1
    for k in shape:
        total *= k
    vals = [rng.random() < 0.5 for _ in range(total)]
    return f"np.array({vals},dtype=bool).reshape({shape})"


def numpy_key(rng, dims, arrays=True, strict=False, newaxis=True):
    """Return the text between brackets for dimensions `dims`."""
    left = list(dims)
    terms = []
    shape = tuple(rng.choice([0, 1, 2, 2, 3]) for _ in range(rng.choice([0, 1, 1, 1, 2])))
    use_arrays = arrays and rng.random() < 0.4
    count = len(left) if strict else rng.randint(0, len(left))
    if rng.random() < 0.03:
        count += 1
    while count > 0:
        dim = left[0] if left else dims[0] if dims else None
        r = rng.random()
        if newaxis and r < 0.08:
            terms.append(rng.choice(["None", "ts.newaxis"]))
            continue
        if dim is None:
            terms.append("3")
        elif use_arrays and r < 0.5:
            if rng.random() < 0.12:
                k = rng.choice([0, 1, 1, 2])
                terms.append(bool_near(rng, None, k))
                left = left[k:]
                count -= k
                if k == 0 and rng.random() < 0.5:
                    count -= 1
                continue
            sh = shape
            if rng.random() < 0.25:
                sh = tuple(1 if rng.random() < 0.4 else n for n in shape)[rng.randint(0, len(shape)) :]
            if rng.random() < 0.03:
                sh = (rng.randint(0, 4),)
            terms.append(array_near(rng, dim, sh))
        elif r < 0.72:
            terms.append(str(index_near(rng, dim)) if rng.random() < 0.9 else f"np.int32({index_near(rng, dim)})")
        else:
            terms.append(slice_near(rng, dim))
        left = left[1:]
        count -= 1
    if rng.random() < 0.35:
        terms.insert(rng.randint(0, len(terms)), "...")
        if rng.random() < 0.03:
            terms.append("...")
    if not terms:
        return "..." if rng.random() < 0.5 else "()"
    if len(terms) == 1 and rng.random() < 0.5:
        return terms[0]
    return ",".join(terms) + ","


def dim_selection(rng, dims, n=None):
    rank = len(dims)
    n = rng.randint(0, min(rank, 3)) if n is None else n
    if rng.random() < 0.2:
        a = rng.choice(["", "", "0", "1", "-1", "2", "-2"])
        b = rng.choice(["", "", "1", "2", "-1", "3"])
        c = rng.choice(["", "", "", ":2", ":-1", ":1"])
        return f"d[{a}:{b}{c}]"
    picked = rng.sample(range(rank), min(n, rank))
    if rng.random() < 0.02 and picked:
        picked.append(picked[0])
    out = []
    for p in picked:
        r = rng.random()
        if r < 0.4 and dims[p].label:
            out.append(repr(dims[p].label))
        elif r < 0.7:
            out.append(str(p - rank))
        else:
            out.append(str(p))
    if rng.random() < 0.02:
        out.append(rng.choice(["7", "'q'", "-9"]))
    return f"d[{','.join(out) or '()'}]" if len(out) != 1 or rng.random() < 0.5 else f"d[{out[0]},]"


def vector(rng, n, choices):
    if rng.random() < 0.5:
        return str(rng.choice(choices))
    if rng.random() < 0.03:
        n += 1
    return ",".join(str(rng.choice(choices)) for _ in range(n)) + "," if n else "()"


MOVES = [0, 1, -1, 3, -5, 10, None, 7]


def dim_op(rng, dims, sel_count, can_new):
    r = rng.random()
    n = sel_count
    if r < 0.12:
        names = rng.sample(["a", "b", "c", "x", "y", "", ""], min(n, 7)) if rng.random() < 0.95 else ["q"]
        return f".label[{names!r}]", n
    if r < 0.22:
        return f".translate_to[{vector(rng, n, MOVES)}]", n
    if r < 0.32:
        return f".translate_by[{vector(rng, n, MOVES)}]", n
    if r < 0.38:
        return f".translate_backward_by[{vector(rng, n, MOVES)}]", n
    if r < 0.52:
        return (
            f".stride[{vector(rng, n, [1, 2, 3, -1, -2, -3, 5, 0] if rng.random() < 0.1 else [1, 2, -1, -2, 3])}]",
            n,
        )
    if r < 0.62:
        rank = len(dims)
        if rng.random() < 0.5:
            target = str(rng.randint(-rank - 1, rank))
        else:
            target = ",".join(map(str, rng.sample(range(rank), min(n, rank)))) + "," if n else "()"
        return f".transpose[{target}]", n
    if r < 0.70 and n > 0 and dims:  # TensorStore crashes on the diagonal of no dimensions
        return ".diagonal", 1
    if r < 0.78:
        return ".mark_bounds_implicit[" + rng.choice(
            ["True", "False", "True:False", ":True", "False:", "True:", ":", "None"]
        ) + "]", n
    if n == 0:
        return ".translate_by[1]", n  # TensorStore crashes on [...] of no dimensions
    mode = rng.choice(["", "", ".oindex", ".vindex"])
    key = numpy_key(
        rng, [rng.choice(dims) for _ in range(n)] if dims else [], strict=True, newaxis=can_new and rng.random() < 0.2
    )
    return f"{mode}[{key}]", None


def dim_expression(rng, dims):
    sel = dim_selection(rng, dims)
    try:
        n = max(0, sel.count(",") + 1 - sel.endswith(",]") - ("()" in sel))
        if ":" in sel:
            n = len(eval(f"range({len(dims)})[{sel[2:-1]}]"))
    except Exception:
        n = 1
    if rng.random() < 0.08:
        new = [str(rng.randint(0, len(dims))) for _ in range(rng.choice([1, 1, 2]))]
        return f"t[d[{','.join(new)}][None]{rng.choice(['', '.label[' + repr(['n%d' % i for i in range(len(new))]) + ']'])}]"
    text = ""
    for i in range(rng.choice([1, 1, 1, 2, 3])):
        op, n2 = dim_op(rng, dims, n, i == 0)
        text += op
        if n2 is None:
            return (
                f"t[{sel}{text}{rng.choice(['', '', '.translate_by[2]', '.label[[' + repr('q') + ']]', '.stride[2]'])}]"
            )
        else:
            n = n2
    return f"t[{sel}{text}]"


def step(rng, t):
    """Return an expression to apply to the oracle's transform `t`, or None: it crashes on empty views with arrays."""
    dims = list(t.domain)
    if 0 in t.domain.shape and any(o.index_array is not None for o in t.output):
        return None
    r = rng.random()
    if r < 0.30:
        return f"t[{numpy_key(rng, dims)}]"
    if r < 0.38:
        return f"t.oindex[{numpy_key(rng, dims)}]"
    if r < 0.46:
        return f"t.vindex[{numpy_key(rng, dims)}]"
    if r < 0.78:
        return dim_expression(rng, dims)
    n = len(dims)
    if r < 0.80:
        return f"t.translate_to[{vector(rng, n, MOVES)}]"
    if r < 0.82:
        return f"t.translate_by[{vector(rng, n, MOVES)}]"
    if r < 0.83:
        return f"t.translate_backward_by[{vector(rng, n, MOVES)}]"
    if r < 0.85:
        return "t.mark_bounds_implicit[" + rng.choice(["True", "False", "True:False", ":True", "False:"]) + "]"
    if r < 0.87:
        names = rng.sample(["a", "b", "c", "x", "y", "", ""], min(n, 7))
        return f"t.label[{names!r}]"
    if r < 0.89:
        return "t.T"
    if r < 0.91:
        axes = rng.sample(range(n), n)
        if rng.random() < 0.1 and n:
            axes[0] = rng.randint(-n - 1, n)
        return f"t.transpose({axes})"
    if r < 0.95:
        # restrict by a domain near
        lo, hi, lab = [], [], []
        order = rng.sample(range(n), n) if rng.random() < 0.3 else list(range(n))
        if rng.random() < 0.3:
            order = order[: rng.randint(0, n)]
        for i in order:
            a, b = sorted((index_near(rng, dims[i]), index_near(rng, dims[i])))
            lo.append(a), hi.append(b + rng.choice([0, 1]))
            lab.append(dims[i].label if rng.random() < 0.9 else "")
        if rng.random() < 0.4:
            lab = [""] * len(order)
        if rng.random() < 0.1:
            lab = ["k%d" % i for i in range(len(order))]
        return f"t[ts.IndexDomain(inclusive_min={lo},exclusive_max={hi},labels={lab})]"
    # compose with a random transform of the right output rank
    rank = rng.choice([0, 1, 2, 3])
    text, (lo, hi, il, iu) = domain(rng, rank)
    shape = [b - a if isinstance(a, int) and isinstance(b, int) else None for a, b in zip(lo, hi)]
    outs = []
    for dim in dims:
        if rng.random() < 0.3:
            outs.append(f"ts.OutputIndexMap({index_near(rng, dim)})")
        else:
            outs.append(output(rng, rank, shape, il, iu))
    return f"t[ts.IndexTransform({text},[{','.join(outs)}])]"


# What is different on purpose.  Each entry: why, and how the chain recognises it.
DELIBERATE = {
    "TensorStore marks the wrong side as implicit when a reversed slice gives only one of its ends, so that "
    "`[3::-1]` of [0, 10*) reads all ten elements": "slice_near() gives both ends or none to reversed slices",
    "TensorStore refuses or widens reversed slices of an empty dimension": "runs_in_both() leaves them out",
    "TensorStore crashes on empty views with index arrays, on `[...]` and `.diagonal` of no dimensions": "step() and "
    "dim_op() leave them out; what remains is counted as a crash",
    "an index array that has one value everywhere may stay an array where fsstore makes a constant, or the other way "
    "round": "canonical() compares both as constants",
    "TensorStore merges the labels of domains without checking that they stay unique": "domain_expression() gives labels "
    "to one side only",
    "`output` of a transform over a dimension of size 0 shows empty index arrays": "compared by JSON and repr only",
}


def evaluate(text, library, t=None):
    """Return `(value, None)` or `(None, error)`."""
    try:
        return eval(text, {"ts": library, "np": np, "d": library.d, "t": t}), None
    except Exception as error:
        return None, error


def kind(error):
    """Return the kind of an error that must agree: its Python base and whether it is out of range."""
    if isinstance(error, IndexError):
        base = "IndexError"
    elif isinstance(error, ValueError):
        base = "ValueError"
    else:  # TensorStore raises RuntimeError where a binding cannot convert an argument
        base = "TypeError" if isinstance(error, TypeError | RuntimeError) else type(error).__name__
    return base, str(error).startswith("OUT_OF_RANGE")


def canonical(value):
    """Return the JSON of a transform with arrays of equal values as constants."""
    output = []
    for entry in value.get("output", []):
        array = np.array(entry.get("index_array", []), dtype=np.int64)
        if array.size and (array == array.flat[0]).all():
            offset = entry.get("offset", 0) + entry.get("stride", 1) * int(array.flat[0])
            output.append({"offset": offset} if offset else {})
        else:
            output.append(entry)
    return {**value, "output": output}


def difference(theirs, ours):
    """Return how two transforms differ, or None."""
    mine, other = ours.to_json(), theirs.to_json()
    if mine != other:
        same = canonical(mine) == canonical(other)
        return None if same else f"{other} != {mine}"
    if repr(theirs) != repr(ours) or str(theirs.domain) != str(ours.domain):
        return f"{theirs!r} != {ours!r}"
    if 0 not in theirs.domain.shape and str(theirs.output) != str(ours.output):
        return f"{theirs.output} != {ours.output}"
    return None


def disagreement(theirs, their_error, ours, our_error):
    """Return how two results differ, or None."""
    if their_error is None and our_error is None:
        return (
            difference(theirs, ours)
            if hasattr(theirs, "to_json")
            else None
            if theirs == ours
            else f"{theirs} != {ours}"
        )
    if their_error is None or our_error is None or kind(their_error) != kind(our_error):
        return f"{type(their_error).__name__} {str(their_error)[:200]} != {type(our_error).__name__} {our_error}"
    return None


def runs_in_both(text, t):
    """Return whether the step is one that both libraries must agree on."""
    return text is not None and not (0 in t.domain.shape and re.search(r":-[1-9]", text))


def chain(seed, theirs, ours):
    """Run one chain; return `(history, disagreement or None, number of results compared)`."""
    rng = random.Random(seed)
    text = start(rng)
    history, compared = [text], 1
    a, their_error = evaluate(text, theirs)
    b, our_error = evaluate(text, ours)
    problem = disagreement(a, their_error, b, our_error)
    if problem or their_error:
        return history, problem, compared
    for _ in range(rng.randint(1, 6)):
        text = step(rng, a)
        if not runs_in_both(text, a):
            break
        point = f"t({[index_near(rng, dim) for dim in a.domain]})"
        for expression in (point, text):
            x, their_error = evaluate(expression, theirs, a)
            y, our_error = evaluate(expression, ours, b)
            compared += 1
            problem = disagreement(x, their_error, y, our_error)
            if problem:
                return [*history, expression], problem, compared
        if their_error is None:
            a, b = x, y
            history.append(text)
    return history, None, compared


def domain_expression(rng):
    """Return an expression of domains or dimensions, whose text must agree."""
    rank = rng.choice([0, 1, 2, 3])
    a, _ = domain(rng, rank)
    b, _ = domain(rng, rank if rng.random() < 0.9 else 1)
    b = re.sub(r",labels=\[.*?\]\)", ")", b)
    return rng.choice(
        [
            f"{a}.intersect({b})",
            f"{a}.hull({b})",
            f"{b}.hull({a})",
            f"{a}[{b}]",
            f"{a} == {b}",
            f"{a}.to_json()",
            f"ts.IndexDomain(json={a}.to_json())",
            f"[x.intersect(y) for x, y in zip({a}, {b})]",
            f"[y.hull(x) for x, y in zip({a}, {b})]",
            f"[x in y for x, y in zip({a}, {b})]",
            f"{a}.index_exp",
            f"{a}.size",
            f"({a}.shape, {a}.inclusive_max)",
            f"[(x.size, x.empty, x.finite, str(x)) for x in {a}]",
            f"ts.IndexTransform({b})[ts.IndexTransform({a})]",
        ]
    )


def main(first, count):
    """Work through `count` seeds from `first`."""
    import tensorstore

    import fsstore.index

    compared = 0
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed}), flush=True)
        history, problem, steps = chain(seed, tensorstore, fsstore.index)
        compared += steps
        if problem:
            print(json.dumps({"seed": seed, "history": history, "problem": problem}), flush=True)
    print(json.dumps({"compared": compared}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
