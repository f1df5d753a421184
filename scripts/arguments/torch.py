"""torch: the arguments of its operators, and the tensors of <tessella/torch.hpp>."""

from __future__ import annotations

from arguments.table import KINDS, Table, rows

_OF_CACHES = ", str? kv_dtype=None, bool v_transposed=False"  # keywords of Python's own
MOST_ARGUMENTS = 64 - 5  # of a schema, less what the operators have of their own

# Arguments of a call by themselves.
OPERANDS = {
    "forward_args": ("q", "k"),
    "append_args": ("k_new", "k", "seqlens_kv"),
    "quantize_args": ("x", "out"),
    "linear_args": ("x", "w"),
}


def schemas(table: Table) -> dict[str, str]:
    """Operator of torch -> the arguments of its schema that attention has, from q on.

    A seed and an offset may be numbers and tensors; Inductor has an argument "kernel" of its own beside an operator's.
    amax, which is written, is the operator's that writes. Raises SystemExit where torch takes fewer.
    """

    def arguments(left_out: str) -> str:
        tensors, options = [], []
        for row in rows(table["forward_args"], "torch"):
            if row.get("cached") == left_out or row["kind"] != "tensor" or row["names"] == ["amax"]:
                continue
            tensors += [f"{name}_tensor" if name in ("seed", "offset") else name for name in row["names"]]
        for row in rows(table["attention_options"], "torch"):
            if row.get("cached") == left_out:
                continue
            default = row.get("default", 0)
            spelled = "float?=None" if default == "NAN" else KINDS[row["kind"]].torch.format(default)
            kind, default = row.get("torch", spelled).split("=")
            options += [f"{kind} {'kernel_name' if name == 'kernel' else name}={default}" for name in row["names"]]
        named = [f"Tensor? {name}=None" for name in tensors]
        first = ("Tensor q, Tensor k, Tensor v, *", "str layout='bshd'")
        return ", ".join((*first, *named, "Tensor[]? mod_args=None", *options))

    made = {"attention": arguments("only"), "attention_cached": arguments("not") + _OF_CACHES}
    for name, schema in made.items():
        if (count := schema.count(",")) > MOST_ARGUMENTS:
            raise SystemExit(f"{name} has {count} arguments, expected at most {MOST_ARGUMENTS} for torch")
    return made


def regions(table: Table, struct: str) -> dict[str, str]:
    """The tensors of a call beside its operands and those of a mask: the members, and what views them."""
    of_struct = [
        row
        for row in rows(table[struct], "cpp")
        if row["kind"] == "tensor" and row.get("part_of") != "mask" and row["names"][0] not in OPERANDS[struct]
    ]
    members = ["  at::Tensor " + ", ".join(f"{name} = {{}}" for name in row["names"]) + ";" for row in of_struct]
    names = [name for row in of_struct for name in row["names"]]
    views = [f'  args.{name} = view(tensors.{name}, "{name}");' for name in names]
    return {"tensors": "\n".join(members), "views": "\n".join(views)}
