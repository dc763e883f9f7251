"""TensorStore's data types as attributes: `int32`, `float64`, `json`, ...

A module of its own, because `bool` here is a data type and no longer Python's.
"""

from fsstore.values.dtypes import dtype_of as _named

bool = _named("bool")  # noqa: A001  # TensorStore's name
int2 = _named("int2")
int4 = _named("int4")
int8 = _named("int8")
uint8 = _named("uint8")
int16 = _named("int16")
uint16 = _named("uint16")
int32 = _named("int32")
uint32 = _named("uint32")
int64 = _named("int64")
uint64 = _named("uint64")
float8_e3m4 = _named("float8_e3m4")
float8_e4m3fn = _named("float8_e4m3fn")
float8_e4m3fnuz = _named("float8_e4m3fnuz")
float8_e4m3b11fnuz = _named("float8_e4m3b11fnuz")
float8_e5m2 = _named("float8_e5m2")
float8_e5m2fnuz = _named("float8_e5m2fnuz")
float8_e8m0fnu = _named("float8_e8m0fnu")
float4_e2m1fn = _named("float4_e2m1fn")
float16 = _named("float16")
bfloat16 = _named("bfloat16")
float32 = _named("float32")
float64 = _named("float64")
complex64 = _named("complex64")
complex128 = _named("complex128")
char = _named("char")
byte = _named("byte")
string = _named("string")
ustring = _named("ustring")
json = _named("json")
