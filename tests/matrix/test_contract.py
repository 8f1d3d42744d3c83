"""The contract of tables, in each catalog: the tests are those of `tests/contract`."""

import pytest

from tests.contract.test_landings import *  # noqa: F403  # likewise
from tests.contract.test_races import *  # noqa: F403  # likewise
from tests.contract.test_rejects import *  # noqa: F403  # likewise
from tests.contract.test_sharing import *  # noqa: F403  # likewise

pytestmark = pytest.mark.integration
