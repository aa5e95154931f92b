"""The recipe's form in the lab: every row of the catalog, presets, weights, pasted recipes, bad parameters."""

import yaml
from streamlit.testing.v1 import AppTest

from engine.catalog import CALIBRATORS, MERGE_METHODS, TRANSFORMS
from engine.recipe import parse_recipe
from pages.forms import recipe as forms
from pages.forms.recipes import check
from tests.made_run import TASKS


def problems(app):
    return [element.value for element in app.error]


def test_the_form_says_everything_that_speaks_against_a_recipe(workspace):
    deep = [{"method": "interv_merge"}, {"method": "surgery", "params": {"steps": 0}}]
    document = {**forms.FIRST_RECIPE, "zoo": str(workspace.zoo), "merge": {"method": "emr"}}
    recipe, problems = check({**document, "calibrators": deep})
    assert (recipe, [text.partition(":")[0] for text in problems]) == (None, ["Parameters of Surgery"])
    recipe, problems = check({**document, "calibrators": deep[:1]})
    assert recipe is None
    assert [text.partition(",")[0] for text in problems] == ["IntervMerge acts inside one merged encoder"]
    recipe, problems = check({**document, "calibrators": []})
    assert (recipe.merge.method, problems) == ("emr", [])


def test_a_bad_parameter_is_named_in_place_and_cannot_be_run(workspace, open_app):
    workspace.example()
    app = open_app()
    app.text_input(key="form.w.seeds").set_value("0, x").run()
    assert any("seeds" in problem for problem in problems(app))
    assert app.button(key="form.run").disabled
    for number in (2**32, "9" * 5000):
        app.text_input(key="form.w.seeds").set_value(str(number)).run()
        assert not app.exception
        assert any("seeds" in problem for problem in problems(app))
    app.text_input(key="form.w.seeds").set_value("0, 1").run()
    assert not problems(app)
    app.multiselect(key=f"form.w.experts.{workspace.zoo}").set_value([]).run()
    assert any("no expert is chosen" in problem for problem in problems(app))


def test_experts_are_weighed_and_forgotten_by_sliders(workspace, open_app):
    workspace.example()
    app, key = open_app(), f"form.w.experts.{workspace.zoo}"
    app.toggle(key=f"{key}.weighed").set_value(True).run()
    assert app.session_state[forms.RECIPE]["experts"] == "all"
    first, *others = app.multiselect(key=key).value
    app.slider(key=f"{key}.weight.{first}").set_value(0.5).run()
    assert app.session_state[forms.RECIPE]["experts"] == [
        {"name": first, "weight": 0.5},
        *({"name": name, "weight": 1.0} for name in others),
    ]
    app.selectbox(key=f"{key}.forgotten").set_value(others[0]).run()
    app.button(key=f"{key}.forget").click().run()
    assert not problems(app)
    assert app.session_state[forms.RECIPE]["experts"] == [{"name": others[0], "weight": -1.0}]
    app.toggle(key=f"{key}.weighed").set_value(False).run()
    assert app.session_state[forms.RECIPE]["experts"] == [{"name": others[0], "weight": 1.0}]


def test_an_unusual_weight_of_a_recipe_stays_in_the_form(workspace, open_app):
    workspace.example()
    app, (first, *_) = open_app(), list(TASKS)
    recipe = parse_recipe({"zoo": str(workspace.zoo), "experts": [{"name": first, "weight": -1.75}]})
    app.session_state["form.paste"] = recipe.to_yaml()
    app.session_state["form.w.text.card"] = True
    app.run()
    app.button(key="form.use").click().run()
    assert not problems(app)
    assert app.session_state[forms.RECIPE]["experts"] == [{"name": first, "weight": -1.75}]
    slider = f"form.w.experts.{workspace.zoo}.weight.{first}"
    app.slider(key=slider).set_value(0.5).run()
    app.run()
    assert app.slider(key=slider).min == -1.75, "the track stays as long, else the slider would lose its value"
    assert app.session_state[forms.RECIPE]["experts"] == [{"name": first, "weight": 0.5}]


def test_a_pasted_recipe_sets_the_form_or_says_what_is_wrong(workspace, open_app):
    workspace.example()
    app = open_app()
    assert not app.get("code")  # what is closed is not sent
    app.session_state["form.w.text.card"] = True
    app.run()
    assert app.get("code")
    pasted = {"zoo": str(workspace.zoo), "merge": {"method": "weight_average"}, "calibrators": [{"method": "surgery"}]}
    app.text_area(key="form.paste").set_value(yaml.safe_dump({**pasted, "merg": 1})).run()
    app.button(key="form.use").click().run()
    assert any("Did you mean 'merge'" in problem.replace("\\", "") for problem in problems(app))
    app.text_area(key="form.paste").set_value(yaml.safe_dump(pasted)).run()
    app.button(key="form.use").click().run()
    assert not problems(app)
    assert app.selectbox(key="form.w.merge").value == "weight_average"


def test_settings_survive_a_change_of_page_and_of_method(workspace, open_app):
    workspace.example()
    app = open_app()
    app.slider(key="form.w.merge.task_arithmetic.scaling.slider").set_value(0.8).run()
    app.selectbox(key="form.w.merge").set_value("weight_average").run()
    app.selectbox(key="form.w.merge").set_value("task_arithmetic").run()
    assert app.slider(key="form.w.merge.task_arithmetic.scaling.slider").value == 0.8
    app.switch_page("pages/runs.py").run()
    app.switch_page("pages/lab.py").run()
    assert app.slider(key="form.w.merge.task_arithmetic.scaling.slider").value == 0.8


def menu(app, key):
    return next(found for found in app.get("menu_button") if found.key == key)


def test_a_preset_sets_the_parameters_it_names(workspace, open_app):
    workspace.example()
    app = open_app()
    menu(app, "form.w.c0._preset").set_value("width_128").run()
    assert app.number_input(key="form.w.c0.rank").value == 128
    assert menu(app, "form.w.c0._preset").label == "As wide as ProbSurgery"
    app.number_input(key="form.w.c0.rank").set_value(17).run()
    assert menu(app, "form.w.c0._preset").label == "Presets"
    assert app.number_input(key="form.w.c0.rank").value == 17


def test_calibrators_are_added_named_apart_and_removed(workspace, open_app):
    workspace.example()
    app = open_app()
    menu(app, "form.w.add").set_value("surgery").run()
    assert [call["name"] for call in app.session_state[forms.RECIPE]["calibrators"]] == ["surgery", "surgery_2"]
    app.text_input(key="form.w.c1.name").set_value("merged").run()
    assert any("cannot be named" in problem for problem in problems(app))
    app.button(key="form.w.c0.remove").click().run()
    app.text_input(key="form.w.c1.name").set_value("other").run()
    assert [call["name"] for call in app.session_state[forms.RECIPE]["calibrators"]] == ["other"]
    assert not problems(app)


def test_options_that_repeat_faults_are_kept_but_not_offered(workspace, open_app):
    workspace.example()
    app = open_app()
    params = {"adam_semantics": "shared", "steps": 7}
    pasted = {"zoo": str(workspace.zoo), "calibrators": [{"method": "surgery", "params": params}]}
    app.session_state["form.w.text.card"] = True
    app.run()
    app.text_area(key="form.paste").set_value(yaml.safe_dump(pasted)).run()
    app.button(key="form.use").click().run()
    app.toggle(key="form.w.c0._all").set_value(True).run()
    assert not app.exception
    assert app.number_input(key="form.w.c0.batch_size").value == 16
    assert not [part for part in app.segmented_control if part.key.endswith("adam_semantics")]
    assert any("Adam state = shared" in part.value for part in app.caption)
    assert app.session_state[forms.RECIPE]["calibrators"][0]["params"]["adam_semantics"] == "shared"


def test_every_row_of_the_catalog_has_a_form_whose_defaults_are_valid(workspace, open_app):
    workspace.example()
    app = open_app()
    for method, row in MERGE_METHODS.items():
        app.selectbox(key="form.w.merge").set_value(method).run()
        assert not app.exception, method
        unmet = [text for text in problems(app) if "Parameters of" in text]
        assert not unmet, (method, unmet)
        assert app.session_state[forms.RECIPE]["merge"]["method"] == method
        assert set(app.session_state[forms.RECIPE]["merge"]["params"]) == set(row.params.model_fields)
    app.selectbox(key="form.w.merge").set_value("task_arithmetic").run()
    calls = [{"method": name, "name": f"{name}_x"} for name in CALIBRATORS]
    pasted = {"zoo": str(workspace.zoo), "transforms": [{"method": t} for t in TRANSFORMS], "calibrators": calls}
    app.session_state["form.w.text.card"] = True
    app.run()
    app.text_area(key="form.paste").set_value(yaml.safe_dump(pasted)).run()
    app.button(key="form.use").click().run()
    for toggle in [toggle.key for toggle in app.toggle if toggle.key.endswith("._all")]:
        app.toggle(key=toggle).set_value(True)
    app.run()
    assert not app.exception
    held = app.session_state[forms.RECIPE]
    assert [call["method"] for call in held["transforms"]] == list(TRANSFORMS)
    recipe, _ = check({**held, "transforms": []})
    assert recipe == workspace.recipe(calibrators=calls)


def test_a_parameter_without_effect_is_not_asked_for_and_keeps_its_value(workspace, open_app):
    workspace.example()
    app = open_app()
    app.selectbox(key="form.w.merge").set_value("adamerging").run()
    density = "form.w.merge.adamerging.density"
    assert density not in [slider.key for slider in app.slider]
    app.toggle(key="form.w.merge.adamerging.plus_plus").set_value(True).run()
    app.slider(key=density).set_value(0.4).run()
    app.toggle(key="form.w.merge.adamerging.plus_plus").set_value(False).run()
    assert density not in [slider.key for slider in app.slider]
    assert app.session_state[forms.RECIPE]["merge"]["params"]["density"] == 0.4
    app.toggle(key="form.w.merge.adamerging.plus_plus").set_value(True).run()
    assert app.slider(key=density).value == 0.4
    assert not app.exception


def test_a_coefficient_beyond_its_track_is_typed(open_app):
    app = open_app()
    slider, field = lambda_of(app)
    assert (slider.min, slider.max) == (0.0, 1.0)
    field.set_value(1.7).run()
    assert not app.exception
    slider, _ = lambda_of(app)
    assert (slider.value, slider.max) == (1.7, 1.7)
    slider.set_value(0.4).run()
    slider, field = lambda_of(app)
    assert (slider.value, field.value) == (0.4, 0.4)
    assert slider.max == 1.7, "a track that shrank would lose the value"


def lambda_of(app):
    """Return the slider and the field of λ, whose keys change when the other moves them."""
    key = "form.w.merge.task_arithmetic.scaling"
    (slider,) = (one for one in app.slider if one.key.startswith(f"{key}.slider"))
    (field,) = (one for one in app.number_input if one.key.startswith(f"{key}.typed"))
    return slider, field


def test_choices_have_titles_and_recipes_keep_their_names():
    def form():
        from engine.catalog import CALIBRATORS
        from pages.forms.params import param_fields

        param_fields(CALIBRATORS["interv_merge"], {}, "made")

    app = AppTest.from_function(form).run()
    chosen = app.selectbox(key="made.function")
    assert chosen.options[:2] == ["NoReFT", "LoReFT"]
    assert chosen.value == "noreft"
    chosen.set_value("lobireft").run()
    assert not app.exception
    assert app.selectbox(key="made.function").value == "lobireft"


def test_the_order_of_experts_is_kept(workspace, open_app):
    """OPCM takes experts in the order given, and SLERP goes from the first to the second."""
    workspace.example()
    app, key = open_app(), f"form.w.experts.{workspace.zoo}"
    names = list(app.multiselect(key=key).value)
    app.multiselect(key=key).set_value(names[::-1]).run()
    assert app.session_state[forms.RECIPE]["experts"] == [{"name": name, "weight": 1.0} for name in names[::-1]]
    app.multiselect(key=key).set_value(names).run()
    assert app.session_state[forms.RECIPE]["experts"] == "all"


def test_numbers_of_a_recipe_come_through_the_form_unrounded(workspace, open_app):
    workspace.example()
    app = open_app()
    exact = {"method": "surgery", "params": {"learning_rate": 0.00123456789}}
    pasted = {"zoo": str(workspace.zoo), "calibrators": [exact]}
    app.session_state["form.w.text.card"] = True
    app.run()
    app.text_area(key="form.paste").set_value(yaml.safe_dump(pasted)).run()
    app.button(key="form.use").click().run()
    assert app.session_state[forms.RECIPE]["calibrators"][0]["params"]["learning_rate"] == 0.00123456789
