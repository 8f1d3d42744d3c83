import itertools

from dev.sources import flights


def test_a_flight_has_its_types():
    first = next(flights.read_flights())
    assert first == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_what_is_not_available_is_null_in_text_and_in_numbers():
    flight = flights.typed({"dep_time": "NA", "tailnum": "NA", "arr_delay": "-18", "carrier": "9E"})
    assert flight == {"dep_time": None, "tailnum": None, "arr_delay": -18, "carrier": "9E"}


def test_a_cancelled_flight_of_the_real_data_has_no_departure():
    cancelled = next(flight for flight in itertools.islice(flights.read_flights(), 2_000) if flight["dep_time"] is None)
    assert cancelled["dep_delay"] is None
    assert isinstance(cancelled["sched_dep_time"], int)
