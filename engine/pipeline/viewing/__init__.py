"""Parts of views: their declaration, and plans and inputs that several of them share."""
