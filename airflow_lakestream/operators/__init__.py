"""Operators: wiring only, from templated keywords to the algorithm and back to XCom."""
