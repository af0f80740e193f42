// Opens a ticket at a tracker that knows no idempotency key and cannot be asked what became
// of a request: a lost answer waits for a person.
//
// Plain `fetch`, no library of the host's. It holds no secret: the grant adds it.

// Where the real tracker answers.
const API = "https://tickets.example";

const INPUT = {
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  additionalProperties: false,
  required: ["project", "title"],
  properties: {
    project: {
      type: "string",
      pattern: "^[A-Za-z0-9_-]{1,64}$",
      description: "The project that gets the ticket, for instance billing."
    },
    title: {
      type: "string",
      minLength: 1,
      maxLength: 200,
      description: "One line: what is wrong."
    },
    text: {
      type: "string",
      maxLength: 20000,
      description: "The rest of it."
    },
    api_base: {
      type: "string",
      format: "uri",
      pattern: "^https?://",
      maxLength: 255,
      description: "For a local provider: where it listens, for instance http://127.0.0.1:12111/any. Leave it out for the real one."
    }
  }
};

const OUTPUT = {
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  required: ["ticket"],
  properties: {
    ticket: { "type": "object", "description": "The tracker's answer, as it gave it." }
  }
};

// A failure as the host knows them: thrown, it becomes the call's error.
const failure = (tag, val) => ({ tag, val });

function parse(text) {
  const args = JSON.parse(text);
  if (args.title.trim() === "") throw failure("invalid-arguments", "`title` has no letter in it");
  return args;
}

export const tool = {
  describe() {
    return {
      name: "issue-ticket",
      version: "0.1.0",
      title: "Open a ticket",
      description:
        "Opens one ticket in a project of the tracker. Use it once per problem: the tracker " +
        "does not notice when it is given the same one again.",
      inputSchema: JSON.stringify(INPUT),
      outputSchema: JSON.stringify(OUTPUT),
      effects: [
        { host: "tickets.example", methods: ["POST"], why: "Opens the ticket with POST /projects/{project}/tickets." },
      ],
    };
  },

  preview(text) {
    const args = parse(text);
    const fields = [
      { label: "Project", value: args.project },
      { label: "Title", value: args.title },
    ];
    if (args.text !== undefined) fields.push({ label: "Text", value: args.text });
    // Said only when it is not the real one: somebody may want to notice.
    if (args.api_base !== undefined) fields.push({ label: "Tracker", value: args.api_base });
    return { title: "Open a ticket", fields };
  },

  async invoke(text) {
    const args = parse(text);
    const base = (args.api_base ?? API).replace(/\/+$/, "");
    let answer, said;
    try {
      answer = await fetch(`${base}/projects/${args.project}/tickets`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ title: args.title, text: args.text ?? "" }),
      });
      said = await answer.text();
    } catch (error) {
      // `fetch` does not say whether it was refused or lost. What was lost, the host has
      // ended by now; so nothing happened.
      throw failure("refused", `the tracker was not reached: ${error}`);
    }
    if (answer.status === 429 || answer.status >= 500) {
      const after = Number.parseInt(answer.headers.get("retry-after"), 10);
      throw failure("try-later", Number.isNaN(after) ? undefined : after);
    }
    if (!answer.ok) throw failure("refused", `the tracker answered ${answer.status}: ${said.slice(0, 500)}`);
    let ticket;
    try {
      ticket = JSON.parse(said);
    } catch {
      throw failure("broken", "the tracker's answer is not JSON");
    }
    return JSON.stringify({ ticket });
  },
};
