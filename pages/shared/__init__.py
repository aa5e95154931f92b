"""What all pages share. Every page imports from here, so this is where one that Streamlit opened by itself ends."""

from pages.shared.entry import enter_through_the_app

enter_through_the_app()
