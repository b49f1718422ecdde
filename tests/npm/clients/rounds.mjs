// What every client is asked (tests/conversation.py says what has to come back), and how its answers are told:
// as one line of JSON each, on standard output.

export const url = process.env.SERVER_URL;
export const key = process.env.SERVER_KEY;
export const model = "tiny";
export const question = "How is the weather?";
export const forever = "Say it forever.";
export const result = "rain";
export const answerTokens = 400;

export const weather = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const pet = {
  type: "object",
  properties: { kind: { enum: ["cat", "dog"] }, size: { enum: [1, 2, 3] } },
  required: ["kind", "size"],
  additionalProperties: false,
};

const wrong = {
  "too long": { text: "x".repeat(5000) },
  "no such model": { text: question, model: "llama9" },
  "bad field": { text: question, temperature: -1 },
  "wrong key": { text: question, key: "another" },
};

function tell(what, found) {
  process.stdout.write(JSON.stringify({ what, found }) + "\n");
}

// `client` has stream(), toolRound(), structured(), ask({text, model, key, temperature}) and leave().
export async function run(client) {
  const asked = process.argv[2];
  if (asked === "leave") {
    tell("leave", await client.leave());
    process.stdin.resume(); // stays until that is closed: a process that ends leaves in any case
    return;
  }
  tell("stream", await client.stream());
  tell("tools", await client.toolRound());
  tell("structured", await client.structured());
  for (const [what, fields] of Object.entries(wrong)) {
    try {
      await client.ask({ model, key, temperature: 0, ...fields });
      tell(what, null);
    } catch (error) {
      tell(what, { kind: error.constructor.name, status: error.status ?? error.statusCode, message: error.message });
    }
  }
}
