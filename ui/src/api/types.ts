/** Short names for the schemas of the API. */
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Agent = Schemas["AgentForm"];
export type AgentPatch = Schemas["AgentPatch"];
export type Approval = Schemas["ApprovalForm"];
export type Archive = Schemas["ArchiveSummaryForm"];
export type Call = Schemas["CallForm"];
export type Cost = Schemas["CostForm"];
export type CostGroup = Schemas["CostGroupForm"];
export type Entity = Schemas["EntityForm"];
export type Hit = Schemas["HitForm"];
export type KnownProgram = Schemas["KnownProgramForm"];
export type Message = Schemas["MessageForm"];
export type Model = Schemas["ModelForm"];
export type Session = Schemas["SessionForm"];
export type Usage = Schemas["UsageForm"];
export type Part = NonNullable<Message["parts"]>[number];

/** An event of a session's stream; its `data` is validated where it is read. */
export interface StreamEvent {
  readonly sequence: number;
  readonly event_type: string;
  readonly data: Readonly<Record<string, unknown>>;
  readonly created_at: string;
}
