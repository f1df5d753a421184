"""Array files byte by byte with the standard library, so that wrong ones are wrong in one way only."""

import io
import json
import math
import pathlib
import random
import struct
import zipfile

SHAPE = (1, 8, 2, 4)


def floats(seed, shape=SHAPE):
    generator = random.Random(seed)
    return struct.pack(f"<{math.prod(shape)}f", *(generator.gauss(0, 1) for _ in range(math.prod(shape))))


def npy(data, shape=SHAPE, descr="<f4", fortran=False, version=1, magic=b"\x93NUMPY"):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return magic + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def npz(arrays, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def safetensors(header, data):
    header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header_bytes)) + header_bytes + data


def entry(begin, end, shape=SHAPE, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def read_npy(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10 : 10 + length])  # the test's own output
    return header, data[10 + length :]
