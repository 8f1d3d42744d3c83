"""`{{ input }}` survives Airflow's own rendering: in a plain task, a mapped one, and a file; the UI shows what runs."""

from __future__ import annotations

import pytest

from airflow_lakestream.transform import SqlTransform
from tests.support.airflow_home import AirflowHome
from tests.unit.transform.support import batch

DAG = '''
from airflow.sdk import DAG, BaseOperator, task
from airflow_lakestream.operators.sql_template import SqlRendering


class Shows(SqlRendering, BaseOperator):
    """Returns its fields as Airflow has rendered them."""

    template_fields = ("sql", "topic")

    def __init__(self, *, sql, topic="t", **kwargs):
        super().__init__(**kwargs)
        self.sql = sql
        self.topic = topic

    def execute(self, context):
        return [self.sql, self.topic]


STATEMENT = "SELECT '{{ ds }}' AS d, '{{ params.country }}' AS c, value FROM {{input}} -- {{ run_id }}"

with DAG("%(dag)s", schedule=None, params={"country": "DE"}, render_template_as_native_obj=%(native)s):
    Shows(task_id="plain", sql=STATEMENT, topic="orders.sql")
    Shows(task_id="file", sql="statement_of_%(dag)s.sql", topic="{{ ds }}")
    Shows.partial(task_id="mapped", topic="{{ ds }}").expand(sql=[STATEMENT])
    Shows(task_id="none", sql=None)

    @task
    def made():
        return "SELECT value FROM {{ input }}"

    Shows(task_id="from_xcom", sql=made())
'''


@pytest.mark.parametrize("native", [False, True])
def test_input_survives_and_everything_else_is_rendered(airflow: AirflowHome, native: bool) -> None:
    dag_id = f"sql_template_{native}".lower()
    path = airflow.write(dag_id, DAG % {"dag": dag_id, "native": native})
    path.with_name(f"statement_of_{dag_id}.sql").write_text(
        "{% if params.country %}SELECT value, '{{ params.country }}' AS c\nFROM {{ input }}{% endif %}\n"
    )
    dag = airflow.dag(path)
    run = airflow.run(dag, {"country": "FR"})
    assert (run.state, run.errors) == ("success", [])

    plain, topic = run.task("plain").xcom
    day = plain[8:18]
    assert plain == f"SELECT '{day}' AS d, 'FR' AS c, value FROM {{{{ input }}}} -- {run.run_id}"
    assert topic == "orders.sql"
    assert run.task("plain").rendered["sql"] == plain
    assert run.task("mapped").xcom == [plain, day]
    assert run.task("file").xcom == ["SELECT value, 'FR' AS c\nFROM {{ input }}", day]
    assert run.task("from_xcom").xcom[0] == "SELECT value FROM {{ input }}"
    assert run.task("none").xcom[0] is None

    assert SqlTransform(plain).apply(batch([b"x"])).rows.to_pylist() == [{"d": day, "c": "FR", "value": "x"}]


def test_input_is_known_to_the_statement_alone(airflow: AirflowHome) -> None:
    text = DAG % {"dag": "sql_template_topic", "native": False}
    dag = airflow.dag(airflow.write("sql_template_topic", text.replace('topic="orders.sql"', 'topic="{{ input }}"')))
    run = airflow.run(dag)
    assert (run.task("plain").state, run.task("from_xcom").state) == ("failed", "success")
