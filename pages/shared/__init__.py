"""Parts that every page uses. Every page imports from here, so one that Streamlit opened by itself ends here."""

from pages.shared.entry import enter_through_the_app

enter_through_the_app()
