"""JSON texts, made by hand: what every reader takes, what none may take, and what we decide.

Together they cover the grammar of RFC 8259: structure, strings, escapes, numbers, white space and
encodings. What the RFC leaves to readers stands in a table with our decision.
"""

from collections.abc import Mapping

# Inside a document these are values; each comes back as it was sent.
TAKEN: tuple[bytes, ...] = (
    b"[]", b"[ ]", b"{}", b"{ }", b"[[]]", b"[[],[[]]]", b'{"a":{}}', b'{"a":[{"b":[]}]}', b"null",
    b"true", b"false", b"[null,true,false]", b"0", b"-0", b"1", b"-1", b"10", b"123", b"0.1",
    b"-0.1", b"1.5", b"10.25", b"1e1", b"1E1", b"1e+1", b"1e-1", b"1E+2", b"1E-2", b"0e0", b"0e+1",
    b"1.5e10", b"-1.5E-10", b"123.456e78", b"9007199254740991", b"-9007199254740991",
    b"9223372036854775807", b"-9223372036854775808", b"18446744073709551615", b"1.7976e308",
    b"5e-324", b"0.00000000000000000000001", b'""', b'" "', b'"a"', b'"asd"', b'"\\""', b'"\\\\"',
    b'"\\/"', b'"/"', b'"\\b\\f\\n\\r\\t"', b'"\\u0060"', b'"\\u012a\\u12AB"', b'"\\u0001"',
    b'"\\u001f"', b'"\\u007f"', b'"\x7f"', b'"\\uD83D\\uDE42"', b'"\\ud834\\udd1e"', b'"\\uFFFE"',
    b'"\\uFFFF"', b'"\\uDBFF\\uDFFF"', b'"\\u200B\\u2064"', b'"\\u2028\\u2029"', b'"\\u0022"',
    b'"\\u005C"', b'"\\\\u0000"', b'"\\\\n"', b'"\xc3\xa9"', b'"\xe2\x82\xac"',
    b'"\xf0\x9f\x99\x82"', b'"\xef\xbf\xbf"', b'"\xf4\x8f\xbf\xbf"', b'"\xe2\x80\xa8"',
    b'"\xef\xbb\xbf"', b'"a/*b*/c/*d//e"', b'"[1,2]"', b'"{}"', b'{"":0}', b'{"a":"b","c":"d"}',
    b'{"\\u0061b":1}', b'{"a b":1}', b'{"x":{"id":1},"y":{"id":1}}', b'{"\xc3\xa9":1}', b"[1,2,3]",
    b'[1,"a",null,{},[]]', b"[ 1 , 2 ]", b"[\t1\n,\r2 ]", b'{\n"a"\t:\r1 }', b"[1\n]", b' "x" ',
    b"[" * 50 + b"]" * 50, b'{"a":' * 40 + b"1" + b"}" * 40,
)  # fmt: skip

# Nobody may take these, as a document or inside one.
REFUSED: tuple[bytes, ...] = (
    b"", b" ", b"\n", b"[", b"]", b"{", b"}", b"[[", b"[1", b"[1,", b"[,", b"[,]", b"[1,]",
    b"[1,,2]", b"[,1]", b"[1 2]", b"[1;2]", b"[1:2]", b"[1}", b"{]", b"[}", b"{1}", b"{,}",
    b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":1,,"b":2}', b'{"a" 1}', b'{"a",1}', b'{"a"::1}',
    b'{:1}', b"{a:1}", b"{'a':1}", b"{1:1}", b"{null:1}", b'{"a":1 "b":2}', b'{"a":1;"b":2}',
    b'{"a":1', b'{"a', b'{"a":"b', b"[]]", b"[][]", b"{}{}", b"{}}", b"[] []", b"1 2", b"1]",
    b"[1]x", b"[1],", b",[1]", b"nul", b"nulll", b"tru", b"True", b"NULL", b"False", b"undefined",
    b"None", b"nan", b"NaN", b"Infinity", b"-Infinity", b"+Infinity", b"Inf", b"-NaN", b"+1",
    b"++1", b"--1", b"-", b"+", b"-a", b"- 1", b"01", b"-01", b"00", b"012", b"1.", b".1", b"-.1",
    b"1.e1", b".e1", b"1e", b"1e+", b"1e-", b"1E", b"1ee1", b"1e1.5", b"1.2.3", b"0x1", b"0b1",
    b"0o1", b"1_000", b"1,000", b"1f", b"1n", b"1a", b"e1", b"1 e1", b"1e 1", b"\xef\xbc\x91",
    b"1/2", b"1+2", b"$1", b"'a'", b"`a`", b'"', b'"a', b'a"', b'"a""', b'"\\"', b'"\\', b'"\\x41"',
    b'"\\u"', b'"\\u1"', b'"\\u12"', b'"\\u123"', b'"\\u12G4"', b'"\\U0041"', b'"\\a"', b'"\\0"',
    b'"\\ "', b'"\\\t"', b'"\\\xf0\x9f\x99\x82"', b'"\\ud8"', b'"\x00"', b'"\x01"', b'"\t"',
    b'"\n"', b'"\r"', b'"\x1f"', b"\x00", b"[\x00]", b"[1\x00]", b"\x0b1", b"\x0c1", b"[\x0b]",
    b"[\xc2\xa0]", b"[\xe2\x81\xa0]", b"[\xe3\x80\x80]", b"/**/1", b"1/**/", b"1//", b"#1", b"[1]#",
    b"<a>", b"<!--1-->", b"[*]", b"@", b"\\u0031", b"[\\n]", b"&", b"(1)", b"[\xff]", b'"\xff"',
    b'"\xc3"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xf8\x88\x80\x80\x80"', b'"\xf4\x90\x80\x80"',
    b'"\xe9"', b"\x80", b"[" * 100_000, b'{"":' * 50_000, b'[{"":' * 20_000,
)  # fmt: skip

# What readers may do as they like, and what we do: taken, or refused.
DECIDED: Mapping[bytes, bool] = {
    b"\xef\xbb\xbf{}": False,
    "{}".encode("utf-16-le"): False,
    "{}".encode("utf-16-be"): False,
    b"\xff\xfe" + "{}".encode("utf-16-le"): False,
    "{}".encode("utf-32-le"): False,
    b'{"a":1,"a":1}': False,
    b'{"a":1,"a":2}': False,
    b'{"a":1,"\\u0061":2}': False,
    b'{"a":"\\u0000"}': False,
    b'{"\\u0000":1}': False,
    b'{"a":"\\ud800"}': False,
    b'{"a":"\\udc00"}': False,
    b'{"a":"\\ud800\\ud800"}': False,
    b'{"a":"\\ud800x"}': False,
    b'{"a":"\\ud800\\n"}': False,
    b'{"a":"\\udd1e\\ud834"}': False,
    b'{"a":"\\ud800\\u0041"}': False,
    b'{"a":18446744073709551616}': False,
    b'{"a":-9223372036854775809}': False,
    b'{"a":100000000000000000000}': False,
    b'{"a":-237462374673276894279832749832423479823246327846}': False,
    b'{"a":' + b"9" * 5_000 + b"}": False,
    b'{"a":1e400}': False,
    b'{"a":-1e9999}': False,
    b'{"a":0.4e006699999999999999999999999999999999999}': False,
    b'{"a":123123e100000}': False,
    b'{"a":1e-400}': True,
    b'{"a":123e-10000000}': True,
    b'{"a":0.1000000000000000055511151231257827}': True,
    b'{"a":"\\uFDD0\\uFFFE"}': True,
    b'{"a":"\xef\xb7\x90"}': True,
    b'{"a":' + b"[" * 99 + b"]" * 99 + b"}": True,
    b'{"a":' + b"[" * 100 + b"]" * 100 + b"}": False,
    b'{"a":' + b"[" * 500 + b"]" * 500 + b"}": False,
    b'{"a":[' + b"0," * 90_000 + b"0]}": True,
    b'{"a":[' + b"0," * 110_000 + b"0]}": False,
}
