"""`json_value` of the SQL standard: a scalar as text, without quotes; NULL for null, missing, objects and arrays.

`json_query` is the counterpart: an object or an array as text; NULL for everything else.

DuckDB's own function keeps the quotes. Macros of the same name in the database's own schema are found first.
"""

from __future__ import annotations

# A number that DuckDB reads as a double may lose digits. If only one number of the document has this double, its text
# is the answer. If several differ only beyond a double's precision, the right one is unknown: that is an error.
_NUMBERS = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
# (A cast that fails raises the error, since TRY takes no `error`.)
# Cheap: true for every document with a number that has too many digits, or may be too small, for a double.
_MAY_LOSE = r"[0-9]{8}\.[0-9]|\.[0-9]{9}|[0-9]{16}[eE]|[eE]-[0-9]{3}"
_TOO_CLOSE = (
    "the document holds several numbers that differ only beyond the precision of a double; which one is meant by "
)

MACROS = (
    f"""CREATE MACRO _lakestream_as_written(numbers, double, path) AS CASE len(numbers)
        WHEN 1 THEN numbers[1] ELSE CAST(CAST('{_TOO_CLOSE}' || path || ' is not known' AS TINYINT) AS VARCHAR) END""",
    f"""CREATE MACRO _lakestream_number(doc, path, found) AS CASE
        WHEN NOT regexp_matches(doc, '{_MAY_LOSE}') THEN found
        WHEN regexp_full_match(found, '-?[0-9]+') THEN found
        WHEN coalesce(NOT isfinite(TRY_CAST(found AS DOUBLE)), true) THEN found
        ELSE _lakestream_as_written(list_distinct(list_filter(regexp_extract_all(doc, '{_NUMBERS}'),
            lambda n: TRY_CAST(n AS DOUBLE) = CAST(found AS DOUBLE))), found, path) END""",
    """CREATE MACRO json_value(doc, path) AS CASE json_type(doc, path)
        WHEN 'OBJECT' THEN NULL WHEN 'ARRAY' THEN NULL WHEN 'NULL' THEN NULL
        WHEN 'DOUBLE' THEN _lakestream_number(CAST(doc AS VARCHAR), path, json_extract_string(doc, path))
        ELSE json_extract_string(doc, path) END""",
    """CREATE MACRO json_query(doc, path) AS CASE WHEN json_type(doc, path) IN ('OBJECT', 'ARRAY')
        THEN CAST(json_extract(doc, path) AS VARCHAR) END""",
    # The same with the texts of all paths looked up at once. A text that looks like an object, an array or a number
    # with a fraction is looked up again, and so is an invalid document: that fails.
    r"""CREATE MACRO _lakestream_json_value(doc, path, texts, found) AS CASE
        WHEN texts IS NULL THEN json_value(doc, path)
        WHEN found IS NULL THEN NULL
        WHEN starts_with(found, '{') OR starts_with(found, '[') THEN json_value(doc, path)
        WHEN (contains(found, '.') OR contains(found, 'e'))
            AND regexp_full_match(found, '-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?')
            AND regexp_matches(CAST(doc AS VARCHAR), '"""
    + _MAY_LOSE
    + """') THEN json_value(doc, path)
        ELSE found END""",
    """CREATE MACRO _lakestream_json_value_or_null(doc, path, texts, found) AS
        CASE WHEN texts IS NOT NULL THEN _lakestream_json_value(doc, path, texts, found) END""",
)
