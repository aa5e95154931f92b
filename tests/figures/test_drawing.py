"""Names that figures put beside marks."""

from engine.figures.drawing import expert_titles
from tests.made_run import made_report


def test_a_shifted_task_does_not_rename_its_expert():
    report = made_report()
    own = report.tasks["signs"]
    fog = own.model_copy(update={"domain": "shifted", "title": "Signs in fog", "expert": own.expert})
    shifted = report.model_copy(update={"tasks": {**report.tasks, "signs_in_fog": fog}})
    assert expert_titles(shifted, report.experts) == expert_titles(report, report.experts)
    assert expert_titles(shifted, [own.expert]) == [own.title]


def test_experts_of_one_title_keep_their_names():
    report = made_report()
    same = {name: task.model_copy(update={"title": "One"}) for name, task in report.tasks.items()}
    assert expert_titles(report.model_copy(update={"tasks": same}), report.experts) == list(report.experts)
    assert expert_titles(report, ["unknown"]) == ["unknown"]
