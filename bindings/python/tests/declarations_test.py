"""_declarations.py says what tessella.h says: constants, structs field by field, functions with their types."""

import ctypes as c
import pathlib
import re

import pytest
from tessella import _declarations as d
from tessella import _errors, _library

HEADER = pathlib.Path(__file__).parents[3] / "include/tessella/tessella.h"
SCALARS = {
    "void*": c.c_void_p,
    "char*": c.c_char_p,
    "size_t": c.c_size_t,
    "float": c.c_float,
    "double": c.c_double,
    "int32_t": c.c_int32,
    "int64_t": c.c_int64,
    "uint64_t": c.c_uint64,
    "tessella_status": c.c_int32,
    "tessella_dtype": c.c_int32,
    "tessella_device_type": c.c_int32,
    "tessella_operation": c.c_int32,
    "tessella_gradient": c.c_int32,
    "tessella_activation": c.c_int32,
    "void": None,
    "tessella_plan*": d.Plan,
    "tessella_plan**": c.POINTER(d.Plan),
    "tessella_pages*": d.Pages,
    "tessella_pages**": c.POINTER(d.Pages),
    "char**": c.POINTER(c.c_char_p),
    "void**": c.POINTER(c.c_void_p),
    "int32_t*": c.POINTER(c.c_int32),
    "int64_t*": c.POINTER(c.c_int64),
    "size_t*": c.POINTER(c.c_size_t),
    "tessella_progress": d.Progress,
}


def header():
    if not HEADER.is_file():
        pytest.skip("the header is not beside the tests")
    return re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)


def class_of(struct):
    return getattr(d, "".join(word.capitalize() for word in struct.removeprefix("tessella_").split("_")))


def type_of(spelled):
    spelled = re.sub(r"\bconst\b|\s+", "", spelled)
    if spelled in SCALARS:
        return SCALARS[spelled]
    return c.POINTER(class_of(spelled.removesuffix("*")))


def prototype(result, arguments):
    parts = [part.strip() for part in arguments.split(",") if part.strip() not in ("", "void")]
    return type_of(result), [type_of(re.sub(r"\w+$", "", part)) for part in parts]


def fields(body):
    """(name, type) of each field, in order."""
    found = []
    for line in filter(None, (line.strip() for line in body.split(";"))):
        if function := re.fullmatch(r"(.+?)\(\*(\w+)\)\((.*)\)", line, re.S):
            result, arguments = prototype(function[1], function[3])
            found.append((function[2], c.CFUNCTYPE(result, *arguments)))
            continue
        spelled, name, length = re.fullmatch(r"(.+?)(\w+)(?:\[(\d+)\])?", line, re.S).groups()
        found.append((name, type_of(spelled) * int(length) if length else type_of(spelled)))
    return found


def test_structs():
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", header(), re.S)
    declared = [getattr(d, name) for name in dir(d)]
    declared = [kind for kind in declared if isinstance(kind, type) and issubclass(kind, c.Structure)]
    assert {class_of(name) for name, _ in structs} == set(declared) - {c.Structure}
    for name, body in structs:
        assert fields(body) == class_of(name)._fields_, name


def test_functions():
    source = header()
    found = re.findall(r"TESSELLA_API ([^;()]*?)(\w+)\(([^;]*?)\);", source)
    assert len(found) == len(re.findall("^TESSELLA_API", source, re.M))
    assert {name: prototype(result, arguments) for result, name, arguments in found} == d.FUNCTIONS


def test_progress():
    result, arguments = re.search(r"typedef (\w+) \(\*tessella_progress\)\((.*?)\);", header(), re.S).groups()
    result, arguments = prototype(result, arguments)
    assert c.CFUNCTYPE(result, *arguments) is d.Progress


def test_constants():
    found = {name: int(value) for name, value in re.findall(r"\bTESSELLA_([A-Z0-9_]+) = (\d+)", header())}
    names = {"DEVICE_CPU": "CPU"}
    declared = {name: value for name, value in vars(d).items() if name.isupper() and isinstance(value, int)}
    assert {names.get(name, name): value for name, value in found.items()} == declared


def test_every_status_has_an_exception():
    body = re.search(r"typedef int32_t tessella_status;\s*enum \{(.*?)\}", header(), re.S)[1]
    statuses = {int(value) for value in re.findall(r"= (\d+)", body)}
    assert set(_errors.BY_STATUS) == statuses - {d.OK}


def test_versions_agree():
    parts = [re.search(rf"TESSELLA_VERSION_{part} (\d+)", header())[1] for part in ("MAJOR", "MINOR", "PATCH")]
    assert _library.version() == ".".join(parts)
