"""HTTP lives here: the OpenAI API and its neighbours, over engines that run in threads of their own."""
