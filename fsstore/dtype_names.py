"""TensorStore's data types as attributes: `int32`, `float64`, `json`, ...

A module of its own, because `bool` here is a data type and no longer Python's.
"""

from fsstore.dtypes import dtype_of

__all__ = [
    "bfloat16",
    "bool",
    "byte",
    "char",
    "complex64",
    "complex128",
    "float4_e2m1fn",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float16",
    "float32",
    "float64",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "json",
    "string",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "ustring",
]

bool = dtype_of("bool")  # noqa: A001  # TensorStore's name
int2 = dtype_of("int2")
int4 = dtype_of("int4")
int8 = dtype_of("int8")
uint8 = dtype_of("uint8")
int16 = dtype_of("int16")
uint16 = dtype_of("uint16")
int32 = dtype_of("int32")
uint32 = dtype_of("uint32")
int64 = dtype_of("int64")
uint64 = dtype_of("uint64")
float8_e3m4 = dtype_of("float8_e3m4")
float8_e4m3fn = dtype_of("float8_e4m3fn")
float8_e4m3fnuz = dtype_of("float8_e4m3fnuz")
float8_e4m3b11fnuz = dtype_of("float8_e4m3b11fnuz")
float8_e5m2 = dtype_of("float8_e5m2")
float8_e5m2fnuz = dtype_of("float8_e5m2fnuz")
float8_e8m0fnu = dtype_of("float8_e8m0fnu")
float4_e2m1fn = dtype_of("float4_e2m1fn")
float16 = dtype_of("float16")
bfloat16 = dtype_of("bfloat16")
float32 = dtype_of("float32")
float64 = dtype_of("float64")
complex64 = dtype_of("complex64")
complex128 = dtype_of("complex128")
char = dtype_of("char")
byte = dtype_of("byte")
string = dtype_of("string")
ustring = dtype_of("ustring")
json = dtype_of("json")
